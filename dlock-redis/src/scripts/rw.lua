-- The common part of the scripts of read/write locks.
-- KEYS: lock, waiting readers by arrival, waiting writers by arrival, heartbeats of both, timeout
-- of the owner's read hold.
-- ARGV: owner, ttl in ms, channel, publish command.
local lock, readers, writers, heartbeats, own_timeout = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, ttl = ARGV[1], tonumber(ARGV[2])
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Wakes all waiters. `1` wakes the parked waiters of Redisson. A waiter of Redisson that is about
-- to park misses `1`, but finds the permit that `0` leaves in its semaphore.
local function wake_all()
    redis.call(ARGV[4], ARGV[3], '1')
    redis.call(ARGV[4], ARGV[3], '0')
end
local function leave(who)
    redis.call('ZREM', heartbeats, who)
    return redis.call('ZREM', readers, who) + redis.call('ZREM', writers, who) > 0
end
-- Removes expired waiters, which have sent no attempt for the duration of their ttl. Then wakes the
-- other waiters.
local function remove_expired()
    local dead = redis.call('ZRANGEBYSCORE', heartbeats, '-inf', now)
    for _, who in ipairs(dead) do leave(who) end
    if #dead > 0 then wake_all() end
end
