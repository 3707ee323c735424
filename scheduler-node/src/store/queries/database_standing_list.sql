-- Lists the standings that are written; a database without one serves.
SELECT name, standing, since FROM duetime.database_standing ORDER BY name
