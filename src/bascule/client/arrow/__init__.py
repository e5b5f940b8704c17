"""Streams as Arrow tables: reading over Flight or from local files, publishing from columns."""
