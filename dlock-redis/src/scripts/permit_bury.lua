-- bury(is_ours): moves the claim that came first from the lock into the queue, and removes the dead. Answers the server's time in
-- ms. If others have deleted the lock or taken it, those who held must not hold again, and those who wait must draw greater tokens
-- than the others have had: they come again, some because they are woken, the others by themselves.
local function bury(is_ours)
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local fields = is_ours and redis.call('HLEN', lock) > 1 and redis.call('HGETALL', lock) or {}
    for i = 1, #fields, 2 do
        if string.find(fields[i], '/', 1, true) then
            local left = redis.call('PTTL', lock)
            -- Somebody else has taken the ttl away.
            if left < 0 then left = ttl end
            redis.call('ZADD', queue, fields[i + 1], fields[i])
            redis.call('ZADD', beats, string.format('%d', now + left), fields[i])
            redis.call('HDEL', lock, fields[i])
            for each = 1, 3 do redis.call('PEXPIRE', KEYS[each], left) end
        end
    end
    -- Times are cut to whole milliseconds: only from the next one on the ttl is over, as with Redis' own keys.
    local dead = redis.call('ZRANGEBYSCORE', beats, '-inf', string.format('(%d', now))
    if #dead > 0 then remove(dead) end
    if not is_ours then
        remove(holders())
        redis.call('DEL', queue, beats)
    end
    return now
end
