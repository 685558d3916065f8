-- The lock that a grant's job takes off, beside the one that it puts on.

ALTER TABLE seal_grants ADD COLUMN unlock text NOT NULL DEFAULT 'none';
ALTER TABLE seal_grants ALTER COLUMN unlock DROP DEFAULT;
