-- Makes an empty file a store, inside the transaction that found it empty. Binds: none. Answer: none.
-- The fence is one row for all names, so that it does not grow with them.
CREATE TABLE dlock_store (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    last INTEGER NOT NULL, -- the number drawn last
    boot TEXT NOT NULL     -- which boot of the host the clock below counts from
) STRICT;
INSERT INTO dlock_store (one, last, boot) VALUES (1, 0, '');

-- Who holds and who waits, in order of arrival.
CREATE TABLE dlock_queue (
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,    -- drawn from the fence: place in the queue and fencing token
    claim BLOB NOT NULL UNIQUE CHECK (length(claim) = 16),
    kind TEXT NOT NULL CHECK (kind IN ('mutex', 'fair', 'read', 'write')),
    shares INTEGER NOT NULL CHECK (shares = (kind = 'read')),
    client BLOB NOT NULL CHECK (length(client) = 16),
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    since INTEGER NOT NULL,  -- nanoseconds on the host's clock
    expires INTEGER NOT NULL, -- nanoseconds on the host's clock
    -- The limit of a permit, else NULL. The kind of a permit is 'mutex', so that a dlock without permits waits for it.
    slots INTEGER CHECK (slots IS NULL OR slots > 0 AND kind = 'mutex'),
    PRIMARY KEY (name, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX dlock_queue_expires ON dlock_queue (name, expires);
-- Finds what others left behind under names that nobody asks for any more.
CREATE INDEX dlock_queue_left ON dlock_queue (expires);
CREATE INDEX dlock_queue_client ON dlock_queue (client);
-- So that a reader finds the nearest that does not share without walking over other readers.
CREATE INDEX dlock_queue_shares ON dlock_queue (name, shares, seq);

PRAGMA application_id = 1684824939;
PRAGMA user_version = 1;
