-- Tables and functions of the queue, in the schema {schema}. They are sent as one query, which is one
-- transaction, so a client that finds the last function finds everything.
--
-- The names of the functions end with a version, which another signature changes. A client of
-- another version creates its own functions beside these, and both use the same tables. If only
-- bodies change, the revision grows. A client replaces the functions of an earlier revision, and
-- uses those of a later one. All names are qualified, so that the `search_path` of a caller has no
-- effect.

-- Two sessions that create a schema at once would otherwise fail on the catalog's unique indexes.
SELECT pg_catalog.pg_advisory_xact_lock(1145851715, -1);

-- Another client may have created this revision or a later one during the wait. The error DL002 says
-- so, and ends the query.
DO $dlock$
BEGIN
    IF {is_complete} THEN
        RAISE EXCEPTION 'the schema is complete' USING ERRCODE = 'DL002';
    END IF;
    -- With `IF NOT EXISTS`, the owner of the schema would need the right to create another one.
    IF pg_catalog.to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END $dlock$;

-- The fence draws the numbers of all names. A name belongs to one of 1024 buckets, so the number of
-- rows does not depend on the number of names.
CREATE TABLE IF NOT EXISTS {schema}.fence (
    bucket integer PRIMARY KEY,
    last bigint NOT NULL
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);

-- The queue has the claims that hold or wait, in order of arrival. Columns that change are in no
-- index, so a renewal writes no index entry.
CREATE TABLE IF NOT EXISTS {schema}.queue (
    name bytea NOT NULL,
    seq bigint NOT NULL,
    claim uuid NOT NULL UNIQUE,
    kind smallint NOT NULL,
    slots integer NOT NULL,
    held boolean NOT NULL,
    since timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    channel text COLLATE "C" NOT NULL,
    who bytea NOT NULL,
    PRIMARY KEY (name, seq)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);

-- A comment waits for a running VACUUM, so an update of the functions writes none.
DO $dlock$
BEGIN
    IF pg_catalog.col_description('{schema}.queue'::pg_catalog.regclass, 1) IS NULL THEN
        COMMENT ON COLUMN {schema}.fence.last IS 'number drawn last';
        COMMENT ON COLUMN {schema}.queue.name IS 'name of the lock, in UTF-8';
        COMMENT ON COLUMN {schema}.queue.seq IS 'position in the queue, and fencing token';
        COMMENT ON COLUMN {schema}.queue.kind IS '1 mutex, 2 fair, 3 read, 4 write, 5 permit';
        COMMENT ON COLUMN {schema}.queue.slots IS 'limit of a permit, otherwise 1';
        COMMENT ON COLUMN {schema}.queue.held IS 'whether the lock was granted to the claim';
        COMMENT ON COLUMN {schema}.queue.channel IS 'channel on which the client of the claim listens while it waits; `-` if it polls';
        COMMENT ON COLUMN {schema}.queue.who IS 'label of the claim, in UTF-8';
    END IF;
END $dlock$;

-- The store has one row with its identity, by which a client recognizes it in another session.
CREATE TABLE IF NOT EXISTS {schema}.store (
    id uuid NOT NULL
);
INSERT INTO {schema}.store (id) SELECT pg_catalog.gen_random_uuid() WHERE NOT EXISTS (SELECT 1 FROM {schema}.store);

-- Locks the queues of a bucket until the transaction ends, and returns the server's time after that.
-- The statements that follow must see what other transactions committed during the wait, so any
-- isolation level with one snapshot for the whole transaction is refused.
CREATE OR REPLACE FUNCTION {schema}.lock_bucket_2(p_bucket integer) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE AS $dlock$
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'dlock needs the isolation level READ COMMITTED' USING ERRCODE = '25001';
    END IF;
    PERFORM pg_catalog.set_config('lock_timeout', '1s', true);
    PERFORM pg_catalog.pg_advisory_xact_lock(1145851715, p_bucket);
    RETURN pg_catalog.clock_timestamp();
END $dlock$;

-- Returns a time as microseconds since 1970.
CREATE OR REPLACE FUNCTION {schema}.micros_2(p_time timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $dlock$
    SELECT (extract(epoch FROM p_time) * 1000000)::bigint
$dlock$;

-- Reads the head of a queue: the claims that hold, up to the first claim that waits. Deletes expired
-- claims there, except p_claim. Wakes the claims behind p_behind, and behind a deleted claim, that
-- hold from now on and do not know it yet.
-- An expired claim whose row another transaction has locked stays, and counts as a holder. That
-- transaction may have checked the claim in, or may be renewing it. Waiting for it would keep the
-- bucket locked. The first waiter behind such a claim polls.
-- Out: how many claims hold, their kind, and the smallest of their limits; has_waiter: whether a
-- claim waits; is_first_waiter: whether that claim is p_claim; holds: whether p_claim holds; ends:
-- the earliest expiry of the holders other than p_claim; wake: claims of p_channel to be woken. Other
-- clients get a notification.
-- A claim whose client polls gets no notification. If the server's queue of notifications is almost
-- full, no claim does and all poll, because a commit with a notification fails if the queue is full,
-- and no exception handler could catch that.
CREATE OR REPLACE FUNCTION {schema}.read_head_2(
    p_name bytea, p_now timestamptz, p_claim uuid, p_channel text, p_behind bigint,
    OUT holders integer, OUT held_kind smallint, OUT least_limit integer, OUT has_waiter boolean,
    OUT is_first_waiter boolean, OUT holds boolean, OUT ends timestamptz, OUT wake uuid[]
) LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    r record;
    v_keeps_expired boolean := false;
BEGIN
    holders := 0;
    least_limit := 2147483647;
    has_waiter := false;
    is_first_waiter := false;
    holds := false;
    wake := '{}';
    FOR r IN
        SELECT q.seq, q.claim, q.kind, q.slots, q.held, q.expires, q.channel
        FROM {schema}.queue q WHERE q.name = p_name ORDER BY q.seq
    LOOP
        IF r.expires <= p_now AND r.claim IS DISTINCT FROM p_claim THEN
            -- The condition is checked again on the newest version of the row. A renewal that was
            -- committed in the meantime keeps its claim.
            PERFORM 1 FROM {schema}.queue q WHERE q.name = p_name AND q.seq = r.seq AND q.expires <= p_now
                FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                DELETE FROM {schema}.queue q WHERE q.name = p_name AND q.seq = r.seq;
                p_behind := least(p_behind, r.seq);
                CONTINUE;
            END IF;
            v_keeps_expired := true;
            -- The poll interval of the first waiter.
            r.expires := p_now + interval '50 milliseconds';
        END IF;
        IF r.kind = 5 THEN
            least_limit := least(least_limit, r.slots);
        END IF;
        IF holders > 0 AND (r.kind <> held_kind OR r.kind NOT IN (3, 5) OR (r.kind = 5 AND holders >= least_limit)) THEN
            has_waiter := true;
            is_first_waiter := r.claim IS NOT DISTINCT FROM p_claim;
            -- It sleeps until the expiry that the claim in front had before its release.
            IF v_keeps_expired AND NOT is_first_waiter AND r.seq > p_behind THEN
                IF r.channel = p_channel THEN
                    wake := wake || r.claim;
                ELSIF r.channel <> '-' AND pg_catalog.pg_notification_queue_usage() < 0.9 THEN
                    PERFORM pg_catalog.pg_notify(r.channel, r.claim::text);
                END IF;
            END IF;
            EXIT;
        END IF;
        holders := holders + 1;
        held_kind := r.kind;
        IF r.claim IS NOT DISTINCT FROM p_claim THEN
            holds := true;
            CONTINUE;
        END IF;
        ends := least(ends, r.expires);
        IF NOT r.held AND r.seq > p_behind THEN
            IF r.channel = p_channel THEN
                wake := wake || r.claim;
            ELSIF r.channel <> '-' AND pg_catalog.pg_notification_queue_usage() < 0.9 THEN
                PERFORM pg_catalog.pg_notify(r.channel, r.claim::text);
            END IF;
        END IF;
    END LOOP;
END $dlock$;

-- Ends claims of one lock, in a locked bucket. Deletes their rows. A row that a transaction has locked
-- by check_in_2 cannot be deleted. Its claim has then expired long ago, so that no request can extend
-- it, and the row excludes the next holder until that transaction ends. Returns the smallest number of
-- the claims that it has ended, or NULL if there was none.
-- With p_may_be_undone, the commit does not wait for the disk. If a crash undoes it, the next holder waits
-- until the claim expires, which may be in days for a detached claim. The commit therefore waits if a
-- claim would last for more than a minute.
CREATE OR REPLACE FUNCTION {schema}.end_claims_2(p_name bytea, p_claims uuid[], p_now timestamptz, p_may_be_undone boolean)
RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    v_first bigint;
    v_expires timestamptz;
BEGIN
    -- Waits for a renewal, but not for a transaction that has checked in.
    SELECT max(r.expires) INTO v_expires FROM (
        SELECT q.expires FROM {schema}.queue q WHERE q.claim = ANY (p_claims) AND q.name = p_name FOR NO KEY UPDATE) AS r;
    IF v_expires > p_now + interval '1 minute' THEN
        PERFORM {schema}.commit_durably_2();
    ELSIF p_may_be_undone THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'off', true);
    END IF;
    WITH free AS MATERIALIZED (
            SELECT q.claim FROM {schema}.queue q
            WHERE q.claim = ANY (p_claims) AND q.name = p_name FOR UPDATE SKIP LOCKED),
        deleted AS (
            DELETE FROM {schema}.queue q USING free WHERE q.claim = free.claim RETURNING q.seq)
        SELECT min(d.seq) INTO v_first FROM deleted d;
    WITH expired AS (
            UPDATE {schema}.queue q SET expires = timestamptz 'epoch'
            WHERE q.claim = ANY (p_claims) AND q.name = p_name AND q.expires <> timestamptz 'epoch'
            RETURNING q.seq)
        SELECT least(v_first, min(e.seq)) INTO v_first FROM expired e;
    RETURN v_first;
END $dlock$;

-- Draws the next number of a bucket. Microseconds of the clock are its lower bound, so that numbers
-- also grow after the tables were created again or restored from a backup.
CREATE OR REPLACE FUNCTION {schema}.draw_2(p_bucket integer, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    v_drawn bigint;
BEGIN
    UPDATE {schema}.fence f SET last = greatest(f.last + 1, {schema}.micros_2(p_now))
        WHERE f.bucket = p_bucket RETURNING f.last INTO v_drawn;
    IF NOT FOUND THEN
        INSERT INTO {schema}.fence (bucket, last) VALUES (p_bucket, {schema}.micros_2(p_now))
            RETURNING last INTO v_drawn;
    END IF;
    RETURN v_drawn;
END $dlock$;

-- Makes the commit of this transaction wait for the disk, and for a synchronous standby if there is one,
-- although commits of the role or of this transaction do not wait.
CREATE OR REPLACE FUNCTION {schema}.commit_durably_2() RETURNS void
LANGUAGE plpgsql VOLATILE AS $dlock$
BEGIN
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END $dlock$;

-- Puts a claim at the end of the queue, or keeps it alive in its place. A read claim with the id of
-- a hold of another kind turns that hold into a read hold. After p_deadline nothing is changed,
-- because the caller may have given up and released the claim.
-- Out: clock: the server's time; late: whether the deadline had passed; token: number of the claim if
-- it holds; otherwise retry: microseconds until the claim in front may expire, is_next: whether only
-- holders are in front, and ahead: number of claims that wait in front, at most 40; wake: as
-- read_head_2.
CREATE OR REPLACE FUNCTION {schema}.attempt_2(
    p_bucket integer, p_name bytea, p_claim uuid, p_kind smallint, p_slots integer, p_ttl bigint,
    p_is_try boolean, p_channel text, p_who bytea, p_deadline bigint,
    OUT clock bigint, OUT late boolean, OUT token bigint, OUT retry bigint, OUT is_next boolean,
    OUT ahead integer, OUT wake uuid[]
) LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    v_now timestamptz;
    v_end timestamptz;
    v_own record;
    v_is_queued boolean;
    v_head record;
    v_behind bigint := 9223372036854775807;
    v_seq bigint;
    v_holds boolean;
    v_ends timestamptz;
BEGIN
    late := false;
    is_next := true;
    ahead := 0;
    wake := '{}';
    -- A try that is refused needs no lock and writes nothing. A permit needs the number of holders,
    -- which is counted under the lock.
    IF p_is_try THEN
        SELECT min(q.expires) INTO v_ends FROM {schema}.queue q
            WHERE q.name = p_name AND q.claim <> p_claim AND q.expires > pg_catalog.clock_timestamp()
                AND (p_kind NOT IN (3, 5) OR q.kind <> p_kind);
        IF v_ends IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {schema}.queue q WHERE q.claim = p_claim) THEN
            v_now := pg_catalog.clock_timestamp();
            clock := {schema}.micros_2(v_now);
            retry := greatest(0, {schema}.micros_2(v_ends) - clock);
            RETURN;
        END IF;
    END IF;

    v_now := {schema}.lock_bucket_2(p_bucket);
    clock := {schema}.micros_2(v_now);
    IF clock > p_deadline THEN
        late := true;
        RETURN;
    END IF;
    v_end := v_now + p_ttl * interval '1 microsecond';

    SELECT q.seq, q.kind, q.held, q.expires INTO v_own FROM {schema}.queue q
        WHERE q.claim = p_claim AND q.name = p_name;
    v_is_queued := FOUND;
    IF v_is_queued AND v_own.expires = timestamptz 'epoch' THEN
        -- The hold was ended, and its row stays until a transaction that has checked it in ends.
        retry := 50000;
        RETURN;
    END IF;
    IF v_is_queued AND p_kind = 3 AND v_own.held THEN
        -- Also if an execution whose reply was lost has changed the kind and has listed the woken claims.
        UPDATE {schema}.queue q SET kind = 3 WHERE q.claim = p_claim AND q.kind <> 3;
        v_behind := v_own.seq;
    END IF;
    SELECT * INTO v_head FROM {schema}.read_head_2(p_name, v_now, p_claim, p_channel, v_behind);
    wake := v_head.wake;

    IF v_is_queued THEN
        v_seq := v_own.seq;
        v_holds := v_head.holds;
        is_next := v_head.is_first_waiter;
        -- The expiry of a waiting claim is approximate, so that a poll seldom writes.
        IF v_holds OR v_own.expires < v_end - p_ttl / 4 * interval '1 microsecond' THEN
            UPDATE {schema}.queue q
                SET expires = greatest(q.expires, v_end), held = v_holds, channel = p_channel
                WHERE q.claim = p_claim;
            IF NOT FOUND THEN
                -- A transaction that does not lock the bucket has deleted the expired claim.
                late := true;
                RETURN;
            END IF;
        END IF;
    ELSE
        is_next := NOT v_head.has_waiter;
        v_holds := NOT v_head.has_waiter AND (v_head.holders = 0 OR (v_head.held_kind = p_kind
            AND (p_kind = 3 OR (p_kind = 5 AND v_head.holders < least(v_head.least_limit, p_slots)))));
        IF v_holds OR NOT p_is_try THEN
            v_seq := {schema}.draw_2(p_bucket, v_now);
            INSERT INTO {schema}.queue (name, seq, claim, kind, slots, held, since, expires, channel, who)
                VALUES (p_name, v_seq, p_claim, p_kind, p_slots, v_holds, v_now, v_end, p_channel, p_who);
        END IF;
    END IF;

    IF v_holds THEN
        token := v_seq;
        PERFORM {schema}.commit_durably_2();
        RETURN;
    END IF;
    -- A claim whose place in the queue is lost in a crash enters the queue again.
    PERFORM pg_catalog.set_config('synchronous_commit', 'off', true);
    v_ends := v_head.ends;
    IF NOT is_next AND v_seq IS NOT NULL THEN
        SELECT q.expires INTO v_ends FROM {schema}.queue q
            WHERE q.name = p_name AND q.seq < v_seq AND q.expires > v_now ORDER BY q.seq DESC LIMIT 1;
        SELECT greatest(1, count(*) - v_head.holders) INTO ahead FROM (
            SELECT 1 FROM {schema}.queue q WHERE q.name = p_name AND q.seq < v_seq ORDER BY q.seq
            LIMIT v_head.holders + 40) AS before;
    END IF;
    retry := greatest(0, {schema}.micros_2(v_ends) - clock);
END $dlock$;

-- Grants several free locks, or none of them. Claims that are in the queue already were granted by an
-- execution whose reply was lost.
-- Out: clock and late as in attempt_2; busy: index from 1 of the first lock that is not free; tokens,
-- if all locks were granted.
CREATE OR REPLACE FUNCTION {schema}.attempt_all_2(
    p_buckets integer[], p_names bytea[], p_claims uuid[], p_kinds smallint[], p_ttls bigint[],
    p_channel text, p_whos bytea[], p_deadline bigint,
    OUT clock bigint, OUT late boolean, OUT busy integer, OUT tokens bigint[]
) LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    v_now timestamptz;
    v_awaited integer := p_buckets[1];
    v_locked integer;
    v_rounds integer := 0;
    v_seq bigint;
    v_end timestamptz;
BEGIN
    -- Waits for one bucket while no other is locked, so a bucket that another transaction keeps
    -- locked delays no lock of the others. The exception unlocks the buckets that were locked in
    -- its block. If several buckets are busy all the time, waits for them one after the other, in
    -- one order, so that two clients never wait for each other.
    LOOP
        clock := {schema}.micros_2(pg_catalog.clock_timestamp());
        late := clock > p_deadline;
        IF late THEN
            RETURN;
        END IF;
        v_rounds := v_rounds + 1;
        IF v_rounds > 8 THEN
            FOR v_awaited IN SELECT DISTINCT b FROM pg_catalog.unnest(p_buckets) AS b ORDER BY b LOOP
                PERFORM {schema}.lock_bucket_2(v_awaited);
            END LOOP;
            EXIT;
        END IF;
        BEGIN
            PERFORM {schema}.lock_bucket_2(v_awaited);
            SELECT b INTO v_locked FROM pg_catalog.unnest(p_buckets) AS b
                WHERE NOT pg_catalog.pg_try_advisory_xact_lock(1145851715, b) LIMIT 1;
            EXIT WHEN NOT FOUND;
            RAISE EXCEPTION 'a bucket is locked' USING ERRCODE = 'DL001';
        EXCEPTION WHEN SQLSTATE 'DL001' THEN
            v_awaited := v_locked;
        END;
    END LOOP;
    v_now := pg_catalog.clock_timestamp();
    clock := {schema}.micros_2(v_now);
    late := clock > p_deadline;
    IF late THEN
        RETURN;
    END IF;
    FOR i IN 1 .. pg_catalog.cardinality(p_names) LOOP
        -- Without a channel, every woken claim gets a notification.
        PERFORM {schema}.read_head_2(p_names[i], v_now, p_claims[i], '', 9223372036854775807);
        -- The row stays locked, so that no transaction without the bucket deletes it if it has
        -- expired.
        SELECT q.seq INTO v_seq FROM {schema}.queue q WHERE q.claim = p_claims[i] FOR NO KEY UPDATE;
        IF EXISTS (SELECT 1 FROM {schema}.queue q WHERE q.name = p_names[i] AND q.claim <> p_claims[i]
            AND (v_seq IS NULL OR q.seq < v_seq))
        THEN
            busy := i;
            EXIT;
        END IF;
    END LOOP;
    IF busy IS NOT NULL THEN
        -- Some claims of a lost grant may have expired, and the others must not stay.
        FOR i IN 1 .. pg_catalog.cardinality(p_names) LOOP
            IF {schema}.end_claims_2(p_names[i], p_claims[i:i], v_now, false) IS NOT NULL THEN
                PERFORM {schema}.read_head_2(p_names[i], v_now, NULL, '', 0);
            END IF;
        END LOOP;
        RETURN;
    END IF;
    tokens := '{}';
    FOR i IN 1 .. pg_catalog.cardinality(p_names) LOOP
        v_end := v_now + p_ttls[i] * interval '1 microsecond';
        UPDATE {schema}.queue q SET expires = greatest(q.expires, v_end), held = true
            WHERE q.claim = p_claims[i] RETURNING q.seq INTO v_seq;
        IF NOT FOUND THEN
            v_seq := {schema}.draw_2(p_buckets[i], v_now);
            INSERT INTO {schema}.queue (name, seq, claim, kind, slots, held, since, expires, channel, who)
                VALUES (p_names[i], v_seq, p_claims[i], p_kinds[i], 1, true, v_now, v_end, p_channel, p_whos[i]);
        END IF;
        tokens := tokens || v_seq;
    END LOOP;
    PERFORM {schema}.commit_durably_2();
END $dlock$;

-- Extends claims that have not expired. Never moves an expiry to an earlier time, because a claim may
-- have been detached for longer. Never inserts a claim. Returns the claims that were extended. With
-- p_skip, claims whose rows are locked by another transaction are left out.
CREATE OR REPLACE FUNCTION {schema}.renew_2(p_claims uuid[], p_ttl bigint, p_skip boolean)
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE AS $dlock$
BEGIN
    PERFORM {schema}.commit_durably_2();
    IF p_skip THEN
        RETURN QUERY
            WITH free AS MATERIALIZED (
                SELECT q.claim FROM {schema}.queue q
                WHERE q.claim = ANY (p_claims) AND q.expires > pg_catalog.clock_timestamp()
                ORDER BY q.claim FOR NO KEY UPDATE SKIP LOCKED)
            UPDATE {schema}.queue q
                SET expires = greatest(q.expires, pg_catalog.clock_timestamp() + p_ttl * interval '1 microsecond')
                FROM free WHERE q.claim = free.claim RETURNING q.claim;
    ELSE
        PERFORM pg_catalog.set_config('lock_timeout', '1s', true);
        RETURN QUERY
            UPDATE {schema}.queue q
                SET expires = greatest(q.expires, pg_catalog.clock_timestamp() + p_ttl * interval '1 microsecond')
                WHERE q.claim = ANY (p_claims) AND q.expires > pg_catalog.clock_timestamp() RETURNING q.claim;
    END IF;
END $dlock$;

-- Deletes some expired claims of locks without a live claim, because this wakes no waiter. Expiries have
-- no index, so this reads a few blocks of the table, from a random one on. Its time therefore does not grow with the number of claims, of which
-- a million may be detached for days.
CREATE OR REPLACE FUNCTION {schema}.sweep_1() RETURNS void
LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    v_span CONSTANT bigint := 16;
    v_blocks bigint := pg_catalog.pg_relation_size('{schema}.queue'::regclass)
        / pg_catalog.current_setting('block_size')::bigint;
    v_first bigint := pg_catalog.floor(pg_catalog.random() * greatest(1, v_blocks - v_span + 1));
BEGIN
    DELETE FROM {schema}.queue q WHERE q.claim IN (
        SELECT e.claim FROM {schema}.queue e
        WHERE e.ctid >= pg_catalog.format('(%s,0)', v_first)::tid
            AND e.ctid < pg_catalog.format('(%s,0)', v_first + v_span)::tid
            AND e.expires <= pg_catalog.clock_timestamp()
            -- `OFFSET` keeps the planner from reading the whole table for a join.
            AND NOT EXISTS (SELECT 1 FROM {schema}.queue o
                WHERE o.name = e.name AND o.expires > pg_catalog.clock_timestamp() OFFSET 0)
        LIMIT 64 FOR UPDATE SKIP LOCKED);
END $dlock$;

-- Deletes a claim, under its own id or that of its ticket, and wakes the claims that hold from now on.
-- With p_sweep, also deletes some expired claims of other locks. The commit does not wait for the
-- disk, except for a claim that lasts long.
-- Out: done: whether the claim was in the queue; wake: as read_head_2.
CREATE OR REPLACE FUNCTION {schema}.release_2(
    p_bucket integer, p_name bytea, p_claims uuid[], p_channel text, p_sweep boolean,
    OUT done boolean, OUT wake uuid[]
) LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    v_now timestamptz;
    v_behind bigint;
BEGIN
    v_now := {schema}.lock_bucket_2(p_bucket);
    v_behind := {schema}.end_claims_2(p_name, p_claims, v_now, true);
    done := v_behind IS NOT NULL;
    -- Without a deleted row this may be the second execution, and the reply to the first one with its
    -- list of woken claims was lost.
    SELECT h.wake INTO wake FROM {schema}.read_head_2(p_name, v_now, NULL, p_channel, coalesce(v_behind, 0)) h;
    IF p_sweep THEN
        PERFORM {schema}.sweep_1();
    END IF;
END $dlock$;

-- Renames a hold to its ticket, with an expiry that needs no renewal. A hold that has the ticket's id
-- is only extended. After p_deadline nothing is changed.
-- Out: clock and late as in attempt_2; done: whether the hold has the ticket's id now.
CREATE OR REPLACE FUNCTION {schema}.detach_2(
    p_bucket integer, p_name bytea, p_claim uuid, p_ticket uuid, p_lasting bigint, p_deadline bigint,
    OUT clock bigint, OUT late boolean, OUT done boolean
) LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    v_now timestamptz;
    v_end timestamptz;
BEGIN
    PERFORM {schema}.lock_bucket_2(p_bucket);
    -- The row may be locked by a renewal. The deadline is compared after that wait. A row that a
    -- transaction has checked in cannot get another id, and the caller repeats the call.
    PERFORM 1 FROM {schema}.queue q WHERE q.claim IN (p_claim, p_ticket) FOR NO KEY UPDATE;
    PERFORM 1 FROM {schema}.queue q WHERE q.claim IN (p_claim, p_ticket) FOR UPDATE NOWAIT;
    v_now := pg_catalog.clock_timestamp();
    clock := {schema}.micros_2(v_now);
    late := clock > p_deadline;
    IF late THEN
        RETURN;
    END IF;
    v_end := v_now + p_lasting * interval '1 microsecond';
    UPDATE {schema}.queue q
        SET expires = CASE WHEN q.claim = p_ticket THEN greatest(q.expires, v_end) ELSE v_end END, claim = p_ticket
        WHERE q.claim IN (p_claim, p_ticket) AND q.name = p_name AND q.held AND q.expires > v_now;
    done := FOUND;
    PERFORM {schema}.commit_durably_2();
END $dlock$;

-- Renames a detached hold from its ticket to the claim's own id, with the claim's ttl and client. A
-- claim that only waits is not renamed. After p_deadline nothing is changed.
-- Out: clock and late as in attempt_2; token: number of the hold, if there is one; remaining:
-- microseconds until the expiry before the call; had_own: whether it had the claim's id before.
CREATE OR REPLACE FUNCTION {schema}.resume_2(
    p_bucket integer, p_name bytea, p_claim uuid, p_ticket uuid, p_ttl bigint, p_channel text, p_who bytea,
    p_deadline bigint,
    OUT clock bigint, OUT late boolean, OUT token bigint, OUT remaining bigint, OUT had_own boolean
) LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    v_now timestamptz;
    v_row record;
BEGIN
    PERFORM {schema}.lock_bucket_2(p_bucket);
    -- As in detach_2.
    PERFORM 1 FROM {schema}.queue q WHERE q.claim IN (p_claim, p_ticket) FOR NO KEY UPDATE;
    SELECT q.seq, q.claim, q.expires INTO v_row FROM {schema}.queue q
        WHERE q.claim IN (p_claim, p_ticket) AND q.name = p_name AND q.held
        ORDER BY q.claim = p_claim DESC LIMIT 1 FOR UPDATE NOWAIT;
    v_now := pg_catalog.clock_timestamp();
    clock := {schema}.micros_2(v_now);
    late := clock > p_deadline;
    IF late OR v_row.seq IS NULL OR v_row.expires <= v_now THEN
        RETURN;
    END IF;
    UPDATE {schema}.queue q
        SET claim = p_claim, channel = p_channel, who = p_who, expires = v_now + p_ttl * interval '1 microsecond'
        WHERE q.name = p_name AND q.seq = v_row.seq;
    token := v_row.seq;
    remaining := {schema}.micros_2(v_row.expires) - clock;
    had_own := v_row.claim = p_claim;
    PERFORM {schema}.commit_durably_2();
END $dlock$;

-- Deletes holds of one lock, and wakes the claims that hold from now on.
-- Out: done: whether there was such a hold; wake: as read_head_2.
CREATE OR REPLACE FUNCTION {schema}.break_2(
    p_bucket integer, p_name bytea, p_claims uuid[], p_channel text, OUT done boolean, OUT wake uuid[]
) LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    v_now timestamptz;
BEGIN
    v_now := {schema}.lock_bucket_2(p_bucket);
    done := {schema}.end_claims_2(p_name, p_claims, v_now, false) IS NOT NULL;
    SELECT h.wake INTO wake FROM {schema}.read_head_2(p_name, v_now, NULL, p_channel, 0) h;
END $dlock$;

-- Verifies that a claim holds its lock, inside a transaction of the caller. Locks the claim's row until
-- that transaction ends. No other claim is granted before, because the row cannot be deleted. A
-- renewal changes no column of a unique index, so it does not wait for this lock.
-- The row is visible only if the claim held when the snapshot was taken. With one snapshot for the
-- whole transaction, all later reads are therefore as new as the grant.
-- In: p_claim: id of the claim. Out: store: identity of the store; is_held; has_one_snapshot: whether
-- the isolation level takes one snapshot for the whole transaction; age: microseconds since the
-- transaction began.
CREATE OR REPLACE FUNCTION {schema}.check_in_2(
    p_name bytea, p_claim text, p_token bigint,
    OUT store text, OUT is_held boolean, OUT has_one_snapshot boolean, OUT age bigint
) LANGUAGE plpgsql VOLATILE AS $dlock$
BEGIN
    PERFORM 1 FROM {schema}.queue q
        WHERE q.claim = p_claim::uuid AND q.name = p_name AND q.seq = p_token AND q.held
            AND q.expires > pg_catalog.clock_timestamp()
        FOR KEY SHARE;
    is_held := FOUND;
    SELECT s.id::text INTO store FROM {schema}.store s;
    has_one_snapshot := pg_catalog.current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    age := {schema}.micros_2(pg_catalog.clock_timestamp()) - {schema}.micros_2(pg_catalog.transaction_timestamp());
END $dlock$;

-- Ends a request for an advisory lock, in session mode. The session then may be silent for p_silence
-- milliseconds. If the lock was granted, returns its token from the fence. Two grants of a bucket may draw
-- their tokens at once. Returns 0 if the lock was not granted, and does nothing if p_is_granted is NULL.
CREATE OR REPLACE FUNCTION {schema}.take_2(p_is_granted boolean, p_bucket integer, p_silence text)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $dlock$
DECLARE
    -- Revision of all functions. A client reads it in this body.
    c_revision CONSTANT integer := {revision};
    v_drawn bigint := 0;
BEGIN
    IF p_is_granted THEN
        INSERT INTO {schema}.fence AS f (bucket, last)
            VALUES (p_bucket, (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint)
            ON CONFLICT (bucket) DO UPDATE SET last = greatest(f.last + 1, excluded.last)
            RETURNING f.last INTO v_drawn;
    END IF;
    IF p_is_granted IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM pg_catalog.set_config('idle_session_timeout', p_silence, false);
    RETURN v_drawn;
END $dlock$
