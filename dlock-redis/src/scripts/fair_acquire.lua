-- KEYS: those of fair.lua, token. ARGV: those of fair.lua, `try` or `wait`. Answer: as acquire.lua.
if redis.call('HEXISTS', lock, owner) == 1 then
    redis.call('PEXPIRE', lock, ttl)
    return redis.call('GET', KEYS[5]) or draw(KEYS[5])
end
if redis.call('HEXISTS', lock, 'mode') == 1 then
    return redis.status_reply('rwlock')
end
local first = redis.call('LINDEX', queue, 0)
bury()
local head = redis.call('LINDEX', queue, 0)
local held = redis.call('EXISTS', lock) == 1
if not held and (not head or head == owner) then
    local token = draw(KEYS[5])
    redis.call('LPOP', queue)
    redis.call('ZREM', beats, owner)
    redis.call('ZREM', deadlines, owner)
    for _, other in ipairs(redis.call('ZRANGE', deadlines, 0, -1)) do advance(other) end
    redis.call('HSET', lock, owner, 1)
    redis.call('PEXPIRE', lock, ttl)
    return token
end
if head ~= first then wake_head() end
if ARGV[6] == 'wait' then
    local mine, last = redis.call('ZSCORE', deadlines, owner), redis.call('LINDEX', queue, -1)
    local before = last and redis.call('ZSCORE', deadlines, last) or now + redis.call('PTTL', lock)
    local deadline = mine and math.max(tonumber(mine), now + patience) or tonumber(before) + patience
    if redis.call('ZADD', deadlines, deadline, owner) == 1 then redis.call('RPUSH', queue, owner) end
    redis.call('ZADD', beats, now + ttl, owner)
    -- For as long as it stands in the queue: without its heartbeat a dead one would be taken for another's.
    redis.call('PEXPIRE', beats, math.max(redis.call('PTTL', beats), ttl, deadline - now))
end
local left = held and redis.call('PTTL', lock)
    or math.max(1, (redis.call('ZSCORE', beats, head) or redis.call('ZSCORE', deadlines, head) or now) - now)
-- Redisson discards whoever is not back within its patience.
local most = ARGV[6] == 'wait' and math.max(1, math.floor(patience / 3)) or left
return (left < 0 or left > most) and most or left
