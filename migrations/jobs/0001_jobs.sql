-- The queue of seal jobs.

CREATE TABLE seal_jobs (
    id uuid CONSTRAINT seal_jobs_pkey PRIMARY KEY,
    submitter text NOT NULL,
    request_id uuid NOT NULL,
    request bytea NOT NULL,
    state text NOT NULL CONSTRAINT seal_jobs_state_known
        CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    cancel_requested boolean NOT NULL DEFAULT false,
    fence bigint NOT NULL DEFAULT 0,
    attempts bigint NOT NULL DEFAULT 0,
    revision bigint NOT NULL DEFAULT 0,
    worker text,
    lease_expires_at bigint,
    progress jsonb NOT NULL,
    resume jsonb,
    result jsonb,
    failure_reason text,
    failure_message text,
    submitted_at bigint NOT NULL,
    started_at bigint,
    ended_at bigint,
    CONSTRAINT seal_jobs_request_unique UNIQUE (submitter, request_id),
    CONSTRAINT seal_jobs_lease_when_running CHECK ((state = 'running') = (lease_expires_at IS NOT NULL)),
    CONSTRAINT seal_jobs_result_when_succeeded CHECK ((state = 'succeeded') = (result IS NOT NULL)),
    CONSTRAINT seal_jobs_reason_when_failed CHECK ((state = 'failed') = (failure_reason IS NOT NULL)),
    CONSTRAINT seal_jobs_end_when_final
        CHECK ((state IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL))
);
CREATE INDEX seal_jobs_waiting ON seal_jobs (submitted_at, id) WHERE state IN ('queued', 'running');

CREATE TABLE job_files (
    job_id uuid NOT NULL CONSTRAINT job_files_job REFERENCES seal_jobs (id),
    stage text NOT NULL,
    number bigint NOT NULL,
    path text NOT NULL,
    size bigint NOT NULL CONSTRAINT job_files_size_range CHECK (size >= 0),
    sha256 bytea NOT NULL CONSTRAINT job_files_sha256_length CHECK (octet_length(sha256) = 32),
    chunk_root bytea NOT NULL CONSTRAINT job_files_root_length CHECK (octet_length(chunk_root) = 32),
    detail jsonb NOT NULL,
    CONSTRAINT job_files_pkey PRIMARY KEY (job_id, stage, number)
);
