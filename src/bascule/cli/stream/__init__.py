"""Commands that create, read and write streams, and measure them."""
