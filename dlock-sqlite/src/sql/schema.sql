-- Creates the store's tables in an empty file, inside the transaction that found the file empty.
-- In: nothing. Out: nothing.
-- The fence. Its one row numbers the claims of all names, so that it does not grow with them.
CREATE TABLE dlock_store (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    last INTEGER NOT NULL, -- the number drawn last
    boot TEXT NOT NULL     -- id of the host's boot to which the times below belong
) STRICT;
INSERT INTO dlock_store (one, last, boot) VALUES (1, 0, '');

-- The claims of holders and waiters, in order of arrival.
CREATE TABLE dlock_queue (
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,    -- number drawn from the fence: position in the queue and fencing token
    claim BLOB NOT NULL UNIQUE CHECK (length(claim) = 16),
    kind TEXT NOT NULL CHECK (kind IN ('mutex', 'fair', 'read', 'write')),
    shares INTEGER NOT NULL CHECK (shares = (kind = 'read')),
    client BLOB NOT NULL CHECK (length(client) = 16), -- zeros for a detached claim
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    since INTEGER NOT NULL,  -- time of arrival, in nanoseconds on the host's clock
    expires INTEGER NOT NULL, -- in nanoseconds on the host's clock
    -- Limit of a permit, otherwise NULL. A permit has the kind 'mutex', so that a dlock without
    -- permits waits for it.
    slots INTEGER CHECK (slots IS NULL OR slots > 0 AND kind = 'mutex'),
    -- Expiry of a detached claim in nanoseconds since 1970, otherwise NULL.
    until INTEGER,
    who TEXT, -- label, or NULL if the dlock that created the claim does not store labels
    PRIMARY KEY (name, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX dlock_queue_expires ON dlock_queue (name, expires);
-- Finds expired claims of names that are no longer requested.
CREATE INDEX dlock_queue_left ON dlock_queue (expires);
CREATE INDEX dlock_queue_client ON dlock_queue (client);
-- Finds the nearest claim ahead of a reader that is not a reader, without a scan of other readers.
CREATE INDEX dlock_queue_shares ON dlock_queue (name, shares, seq);

PRAGMA application_id = 1684824939;
PRAGMA user_version = 1;
