-- Wrapped model keys, seal grants, issued capabilities, revocations and release policies.

CREATE TABLE model_keys (
    id uuid CONSTRAINT model_keys_pkey PRIMARY KEY,
    name text NOT NULL CONSTRAINT model_keys_name_unique UNIQUE
        CONSTRAINT model_keys_name_length CHECK (length(name) BETWEEN 1 AND 128),
    fingerprint bytea NOT NULL
        CONSTRAINT model_keys_fingerprint_length CHECK (octet_length(fingerprint) = 8),
    version bigint NOT NULL CONSTRAINT model_keys_version_range CHECK (version BETWEEN 0 AND 4294967295),
    wrapped bytea NOT NULL,
    origin text NOT NULL CONSTRAINT model_keys_origin_known CHECK (origin IN ('created', 'imported')),
    state text NOT NULL
        CONSTRAINT model_keys_state_known CHECK (state IN ('pending', 'active', 'disabled', 'destroyed')),
    source_aggregate bytea
        CONSTRAINT model_keys_aggregate_length CHECK (octet_length(source_aggregate) = 32),
    caller text NOT NULL,
    request_id uuid NOT NULL,
    body bytea NOT NULL,
    created_at bigint NOT NULL,
    disabled_at bigint,
    CONSTRAINT model_keys_request_unique UNIQUE (caller, request_id),
    CONSTRAINT model_keys_destroyed_is_empty CHECK ((state = 'destroyed') = (octet_length(wrapped) = 0))
);

-- A key's source is set once.
CREATE FUNCTION keep_source() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.source_aggregate IS NOT NULL AND NEW.source_aggregate IS DISTINCT FROM OLD.source_aggregate THEN
        RAISE EXCEPTION 'model_keys.source_aggregate is set once';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER model_keys_source_once BEFORE UPDATE ON model_keys
    FOR EACH ROW EXECUTE FUNCTION keep_source();

CREATE TABLE seal_grants (
    id uuid CONSTRAINT seal_grants_pkey PRIMARY KEY,
    job_id uuid NOT NULL CONSTRAINT seal_grants_job_unique UNIQUE,
    fence bigint NOT NULL CONSTRAINT seal_grants_fence_range CHECK (fence >= 0),
    key_id uuid NOT NULL CONSTRAINT seal_grants_key REFERENCES model_keys (id),
    source_aggregate bytea NOT NULL,
    scheme text NOT NULL,
    transform text NOT NULL,
    lock text NOT NULL,
    blob_salt bytea CONSTRAINT seal_grants_blob_salt_length CHECK (octet_length(blob_salt) = 16),
    container_salt bytea
        CONSTRAINT seal_grants_container_salt_length CHECK (octet_length(container_salt) = 16),
    holder text NOT NULL,
    closed boolean NOT NULL DEFAULT false,
    opened_at bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX seal_grants_by_key ON seal_grants (key_id) WHERE NOT closed;

CREATE TABLE capabilities (
    id uuid CONSTRAINT capabilities_pkey PRIMARY KEY,
    request_id uuid NOT NULL,
    body bytea NOT NULL,
    node text NOT NULL,
    artifact bytea NOT NULL CONSTRAINT capabilities_artifact_length CHECK (octet_length(artifact) = 32),
    key_id uuid NOT NULL CONSTRAINT capabilities_key REFERENCES model_keys (id),
    epoch bigint NOT NULL,
    issued_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    CONSTRAINT capabilities_request_unique UNIQUE (node, request_id)
);
CREATE INDEX capabilities_by_node ON capabilities (node, artifact, issued_at);

CREATE TABLE revocations (
    epoch bigint CONSTRAINT revocations_pkey PRIMARY KEY
        CONSTRAINT revocations_epoch_range CHECK (epoch > 0),
    caller text NOT NULL,
    request_id uuid NOT NULL,
    artifact bytea NOT NULL CONSTRAINT revocations_artifact_length CHECK (octet_length(artifact) = 32),
    node text,
    reason text NOT NULL,
    at bigint NOT NULL,
    CONSTRAINT revocations_request_unique UNIQUE (caller, request_id)
);
CREATE INDEX revocations_by_artifact ON revocations (artifact, epoch);

CREATE TABLE policies (
    version bigint CONSTRAINT policies_pkey PRIMARY KEY
        CONSTRAINT policies_version_range CHECK (version > 0),
    document text NOT NULL,
    author text NOT NULL,
    at bigint NOT NULL
);
