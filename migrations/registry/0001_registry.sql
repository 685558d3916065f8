-- Artifacts and the receipt log.

CREATE TABLE log_entries (
    entry_index bigint CONSTRAINT log_entries_pkey PRIMARY KEY
        CONSTRAINT log_entries_index_range CHECK (entry_index >= 0),
    receipt_id uuid NOT NULL CONSTRAINT log_entries_receipt_unique UNIQUE,
    envelope bytea NOT NULL
        CONSTRAINT log_entries_envelope_length CHECK (octet_length(envelope) BETWEEN 1 AND 65535),
    event text NOT NULL,
    actor text NOT NULL,
    artifact bytea CONSTRAINT log_entries_artifact_length CHECK (octet_length(artifact) = 32),
    appended_at bigint NOT NULL
);
CREATE INDEX log_entries_by_event ON log_entries (event, entry_index);
CREATE INDEX log_entries_by_artifact ON log_entries (artifact, entry_index) WHERE artifact IS NOT NULL;
CREATE INDEX log_entries_by_actor ON log_entries (actor, entry_index);

-- Hashes of complete subtrees of 2^level entries.
CREATE TABLE log_nodes (
    level smallint NOT NULL CONSTRAINT log_nodes_level_range CHECK (level BETWEEN 0 AND 62),
    node_index bigint NOT NULL CONSTRAINT log_nodes_index_range CHECK (node_index >= 0),
    hash bytea NOT NULL CONSTRAINT log_nodes_hash_length CHECK (octet_length(hash) = 32),
    CONSTRAINT log_nodes_pkey PRIMARY KEY (level, node_index)
);

CREATE TABLE log_checkpoints (
    size bigint CONSTRAINT log_checkpoints_pkey PRIMARY KEY
        CONSTRAINT log_checkpoints_size_range CHECK (size > 0),
    root bytea NOT NULL CONSTRAINT log_checkpoints_root_length CHECK (octet_length(root) = 32),
    note text NOT NULL
);

-- One key serves one source.
CREATE TABLE key_sources (
    key_id uuid CONSTRAINT key_sources_one_per_key PRIMARY KEY,
    source_aggregate bytea NOT NULL
        CONSTRAINT key_sources_aggregate_length CHECK (octet_length(source_aggregate) = 32),
    CONSTRAINT key_sources_pair_unique UNIQUE (key_id, source_aggregate)
);

CREATE TABLE artifacts (
    id uuid CONSTRAINT artifacts_pkey PRIMARY KEY,
    digest bytea NOT NULL CONSTRAINT artifacts_digest_unique UNIQUE
        CONSTRAINT artifacts_digest_length CHECK (octet_length(digest) = 32),
    model text NOT NULL CONSTRAINT artifacts_model_length CHECK (length(model) BETWEEN 1 AND 128),
    kind text NOT NULL CONSTRAINT artifacts_kind_known CHECK (kind IN ('checkpoint', 'container')),
    key_id uuid NOT NULL,
    fingerprint bytea NOT NULL
        CONSTRAINT artifacts_fingerprint_length CHECK (octet_length(fingerprint) = 8),
    source_aggregate bytea NOT NULL,
    envelope bytea NOT NULL,
    sealer text NOT NULL,
    request_id uuid NOT NULL,
    receipt_id uuid NOT NULL
        CONSTRAINT artifacts_receipt REFERENCES log_entries (receipt_id),
    registered_at bigint NOT NULL,
    CONSTRAINT artifacts_request_unique UNIQUE (sealer, request_id),
    CONSTRAINT artifacts_source_of_key FOREIGN KEY (key_id, source_aggregate)
        REFERENCES key_sources (key_id, source_aggregate)
);
CREATE INDEX artifacts_by_model ON artifacts (model, kind, id);
CREATE INDEX artifacts_by_source ON artifacts (source_aggregate, id);

-- What was answered stays as it was answered.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END
$$;
CREATE TRIGGER log_entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON log_entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER log_nodes_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON log_nodes
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER log_checkpoints_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON log_checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER key_sources_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON key_sources
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
