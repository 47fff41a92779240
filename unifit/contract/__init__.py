"""What crosses the border between the front end and a backend: plain values and typed protocols, documented once."""
