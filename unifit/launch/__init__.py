"""Starting jobs of several processes, and recognising the one that this process was started in."""
