"""What goes to and fro when a client publishes, as bytes. For kernels alone, see `publish_wire.pxd`."""
