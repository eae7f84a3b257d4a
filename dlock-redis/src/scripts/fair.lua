-- The common part of the scripts of fair locks.
-- KEYS: lock, queue, deadlines of all waiters in Redisson's format, heartbeats of dlock's waiters.
-- ARGV: owner, ttl in ms, Redisson's fairLockWaitTimeout in ms, channel, publish command.
local lock, queue, deadlines, heartbeats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, ttl, wait_timeout = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Returns whether waiters of other programs exist. Only their deadlines are moved after a grant,
-- because dlock's waiters refresh their own deadlines.
local function has_foreign()
    return redis.call('ZCARD', deadlines) > redis.call('ZCARD', heartbeats)
end
-- Moves the deadline of a foreign waiter one wait timeout earlier, because a waiter ahead was
-- removed. Not below now + ttl, because programs may have different wait timeouts.
local function advance(who)
    if redis.call('ZSCORE', heartbeats, who) then return end
    local score = tonumber(redis.call('ZSCORE', deadlines, who) or now)
    local least = math.max(score - wait_timeout, math.min(score, now + ttl))
    redis.call('ZINCRBY', deadlines, least - score, who)
end
local function leave(who)
    if redis.call('ZREM', heartbeats, who) + redis.call('ZREM', deadlines, who) == 0 then return end
    local behind = false
    for _, other in ipairs(has_foreign() and redis.call('LRANGE', queue, 0, -1) or {}) do
        if other == who then behind = true elseif behind then advance(other) end
    end
    redis.call('LREM', queue, 0, who)
end
-- Removes expired waiters. A waiter of dlock expires with its heartbeat, at any position. A foreign
-- waiter expires with its deadline, only at the head.
local function remove_expired()
    for _, dead in ipairs(redis.call('ZRANGEBYSCORE', heartbeats, '-inf', now)) do leave(dead) end
    local head = redis.call('LINDEX', queue, 0)
    while head and not redis.call('ZSCORE', heartbeats, head) do
        if tonumber(redis.call('ZSCORE', deadlines, head) or 0) > now then return end
        redis.call('ZREM', deadlines, head)
        redis.call('LPOP', queue)
        head = redis.call('LINDEX', queue, 0)
    end
end
local function wake_head()
    local head = redis.call('EXISTS', lock) == 0 and redis.call('LINDEX', queue, 0)
    if head and head ~= owner then redis.call(ARGV[5], ARGV[4] .. ':' .. head, '0') end
end
