-- Deletes expired claims of any name, the oldest first. Claims whose rows are locked by another
-- transaction are left out where renew.sql leaves them out. In: queue: the table. Out: nothing.
DELETE own FROM
    (SELECT claim FROM :queue FORCE INDEX (expires)
        WHERE expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        ORDER BY expires LIMIT 100 /*!80001 FOR UPDATE SKIP LOCKED */ /*M!100600 FOR UPDATE SKIP LOCKED */) AS free
    STRAIGHT_JOIN :queue AS own FORCE INDEX (claim) ON own.claim = free.claim
