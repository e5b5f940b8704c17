"""The former format of archives, a manifest of its own: read once, by `bascule pipeline upgrade`."""
