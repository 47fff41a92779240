"""From what users pass as data to padded host windows: sources, order, slices, padding."""
