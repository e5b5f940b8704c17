"""Commands about users: tokens and permissions."""
