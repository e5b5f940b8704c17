"""The metadata that the cluster has agreed on, and the controller that changes it. See docs/internals/controller.md."""
