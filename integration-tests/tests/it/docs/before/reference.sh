# An application with its data in the same database.
psql -q "$DATABASE_URLS" -c 'CREATE TABLE orders (id bigint PRIMARY KEY, total bigint NOT NULL)'
