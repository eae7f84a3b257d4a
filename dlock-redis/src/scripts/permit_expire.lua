-- remove_expired(is_ours) moves the first claim from the lock into the queue, and removes expired
-- claims. Returns the server's time in ms. `is_ours` is false if another program has deleted or
-- taken the lock. The former holders must then not hold again, and the waiters must draw tokens
-- that are greater than those of the other program. All claims are therefore removed. The waiters
-- send new attempts, some because they are woken, the others at their next heartbeat.
local function remove_expired(is_ours)
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local fields = is_ours and redis.call('HLEN', lock) > 1 and redis.call('HGETALL', lock) or {}
    for i = 1, #fields, 2 do
        if string.find(fields[i], '/', 1, true) then
            local left = redis.call('PTTL', lock)
            -- Another program has removed the ttl.
            if left < 0 then left = ttl end
            redis.call('ZADD', queue, fields[i + 1], fields[i])
            redis.call('ZADD', heartbeats, string.format('%d', now + left), fields[i])
            redis.call('HDEL', lock, fields[i])
            for each = 1, 3 do redis.call('PEXPIRE', KEYS[each], left) end
        end
    end
    -- Times are rounded down to ms. A ttl is therefore over only in the next ms, as for keys of
    -- Redis.
    local dead = redis.call('ZRANGEBYSCORE', heartbeats, '-inf', string.format('(%d', now))
    if #dead > 0 then remove(dead) end
    if not is_ours then
        remove(holders())
        redis.call('DEL', queue, heartbeats)
    end
    return now
end
