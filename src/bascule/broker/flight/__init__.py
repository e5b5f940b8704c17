"""The Arrow Flight service of a broker: streams as tables. Imports pyarrow only when it is started."""
