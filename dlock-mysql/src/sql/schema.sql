-- Creates the tables. If two clients do so at once, one of them waits for the other. The time limit
-- for locked tables is therefore longer than in other statements.
-- In: store, fence, queue: the tables; buckets: the rows of the fence. Out: nothing.
SET SESSION lock_wait_timeout = 60;

-- The fence draws the numbers of all names. Each row draws the numbers of the names with its hash.
-- An attempt locks the row of its name first. The number of rows does not depend on the number of
-- names.
CREATE TABLE IF NOT EXISTS :fence (
    bucket SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
    last BIGINT UNSIGNED NOT NULL COMMENT 'the number drawn last'
) ENGINE = InnoDB;

-- The queue has the claims that hold or wait, in order of arrival. Times are microseconds since
-- 1970 on the server's clock.
CREATE TABLE IF NOT EXISTS :queue (
    name VARBINARY(1024) NOT NULL,
    seq BIGINT UNSIGNED NOT NULL COMMENT 'drawn from the fence, place in the queue and fencing token',
    claim BINARY(16) NOT NULL,
    kind VARBINARY(8) NOT NULL COMMENT 'mutex, fair, read, write or permit',
    slots INT UNSIGNED NOT NULL COMMENT 'the limit of a permit, else 1',
    since BIGINT UNSIGNED NOT NULL,
    expires BIGINT UNSIGNED NOT NULL,
    who VARBINARY(200) NOT NULL COMMENT 'who has the claim, in words',
    PRIMARY KEY (name, seq),
    UNIQUE KEY (claim),
    KEY (name, expires),
    KEY (expires)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO :fence (bucket, last) VALUES :buckets;

-- The version is inserted last, because a client that finds it uses the tables.
CREATE TABLE IF NOT EXISTS :store (
    one TINYINT NOT NULL PRIMARY KEY,
    version INT UNSIGNED NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO :store (one, version) VALUES (1, 1);
SET SESSION lock_wait_timeout = 1
