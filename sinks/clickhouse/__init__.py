"""ClickHouse as the sink uses it: one small interface over chdb and servers, migrations, tables."""
