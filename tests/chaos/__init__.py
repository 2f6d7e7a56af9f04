"""Programs that take away Redis, the database and the workers under load, and check that every
promise holds."""
