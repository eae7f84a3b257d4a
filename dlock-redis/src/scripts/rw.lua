-- What the read/write scripts share. KEYS: lock, waiting readers by arrival, waiting writers by arrival, heartbeats of both,
-- timeout of the owner's read hold. ARGV: owner, ttl in ms, channel, publish command.
local lock, readers, writers, beats, mine = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, ttl = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- `1` wakes Redisson's waiters that are parked. A waiter that is about to park misses `1`, but finds the permit that `0` leaves.
local function wake_all()
    redis.call(ARGV[4], ARGV[3], '1')
    redis.call(ARGV[4], ARGV[3], '0')
end
local function leave(who)
    redis.call('ZREM', beats, who)
    return redis.call('ZREM', readers, who) + redis.call('ZREM', writers, who) > 0
end
-- Removes the waiters that have not asked for the time of their ttl: they are dead. Then wakes the others.
local function bury()
    local dead = redis.call('ZRANGEBYSCORE', beats, '-inf', now)
    for _, who in ipairs(dead) do leave(who) end
    if #dead > 0 then wake_all() end
end
-- Removes dlock's readers without a timeout: they are dead. Answers the ms until the last of the other readers ends; nil if one of
-- Redisson's has no timeout. That reader may be alive, because Redisson may renew the hash without each timeout.
local function longest_read(tag)
    local longest, fields = 0, redis.call('HGETALL', lock)
    for i = 1, #fields, 2 do
        local who, holds, left = fields[i], tonumber(fields[i + 1]) or 0, -2
        -- A count above 1000 is no hold's: a foreign field must not keep the server in this loop.
        for k = 1, holds <= 1000 and holds or 0 do
            left = math.max(left, redis.call('PTTL', tag .. ':' .. who .. ':rwlock_timeout:' .. k))
        end
        if who ~= 'mode' and left < 0 then
            if string.sub(who, -2) == ':0' then redis.call('HDEL', lock, who) else longest = nil end
        end
        longest = longest and math.max(longest, left)
    end
    return longest
end
