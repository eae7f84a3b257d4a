-- Acquires a read/write lock. Continued by rw_wait.lua.
-- KEYS: those of rw.lua, token.
-- ARGV: those of rw.lua, `read` or `write`, `try` or `wait`, token_ttl, deadline.
-- Reply: the token as text. A claim without a grant gets {ms until its next attempt or -1 if the
-- holder has no ttl, arrival or 0 if it is not in the queue}. Or a status, which is the kind of
-- lock that uses the name instead.
local reads, queue = ARGV[5] == 'read', ARGV[5] == 'read' and readers or writers
local mode = redis.call('HGET', lock, 'mode')
if not mode and redis.call('EXISTS', lock) == 1 then return redis.status_reply('mutex') end
if mode == 'permit' then return redis.status_reply(mode) end
local function read(token)
    redis.call('HSET', lock, 'mode', 'read', owner, 1)
    redis.call('SET', own_timeout, token, 'PX', ttl)
    redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
    return token
end
local writes = mode == 'write' and redis.call('HEXISTS', lock, owner .. ':write') == 1
if writes and reads then -- a downgrade
    read(draw(KEYS[6], true))
    redis.call('HDEL', lock, owner .. ':write')
    redis.call('PEXPIRE', lock, ttl)
    wake_all()
    return redis.call('GET', own_timeout)
elseif writes then
    redis.call('PEXPIRE', lock, ttl)
    return draw(KEYS[6], true)
elseif reads and mode == 'read' and redis.call('HEXISTS', lock, owner) == 1 then
    return read(redis.call('GET', own_timeout) or draw(KEYS[6]))
end
remove_expired()
local arrival = tonumber(redis.call('ZSCORE', queue, owner) or 'inf')
local writer, reader = redis.call('ZRANGE', writers, 0, 0, 'WITHSCORES'), redis.call('ZRANGE', readers, 0, 0, 'WITHSCORES')
local blocker = writer[2] and tonumber(writer[2]) < arrival and writer[1]
    or not reads and reader[2] and tonumber(reader[2]) < arrival and reader[1]
if not blocker and (not mode or reads and mode == 'read') then
    local token = draw(KEYS[6])
    leave(owner)
    if reads then return read(token) end
    redis.call('HSET', lock, 'mode', 'write', owner .. ':write', 1)
    redis.call('PEXPIRE', lock, ttl)
    return token
end
