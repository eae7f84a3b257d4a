-- What the fair scripts share. KEYS: lock, queue, deadlines of all waiters as Redisson reads them, heartbeats of dlock's waiters.
-- ARGV: owner, ttl in ms, patience in ms, channel, publish command.
local lock, queue, deadlines, beats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, ttl, patience = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Whether other programs wait. Only their deadlines are moved at a hand-off: dlock's waiters refresh their own.
local function has_foreign()
    return redis.call('ZCARD', deadlines) > redis.call('ZCARD', beats)
end
-- Moves a foreign waiter's deadline one patience earlier, since one before it is gone; not below now + ttl, as patiences differ.
local function advance(who)
    if redis.call('ZSCORE', beats, who) then return end
    local score = tonumber(redis.call('ZSCORE', deadlines, who) or now)
    local least = math.max(score - patience, math.min(score, now + ttl))
    redis.call('ZINCRBY', deadlines, least - score, who)
end
local function leave(who)
    if redis.call('ZREM', beats, who) + redis.call('ZREM', deadlines, who) == 0 then return end
    local behind = false
    for _, other in ipairs(has_foreign() and redis.call('LRANGE', queue, 0, -1) or {}) do
        if other == who then behind = true elseif behind then advance(other) end
    end
    redis.call('LREM', queue, 0, who)
end
-- Removes dead waiters: dlock's at any place, when their heartbeat is over; foreign ones at the head, when their deadline is over.
local function bury()
    for _, dead in ipairs(redis.call('ZRANGEBYSCORE', beats, '-inf', now)) do leave(dead) end
    local head = redis.call('LINDEX', queue, 0)
    while head and not redis.call('ZSCORE', beats, head) do
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
