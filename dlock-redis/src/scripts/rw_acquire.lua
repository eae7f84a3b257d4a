-- KEYS: those of rw.lua, token. ARGV: those of rw.lua, `read` or `write`, `try` or `wait`, token_ttl, deadline.
-- Answer: the token as text; for a claim that is not granted {ms until it should ask again, -1 if the holder has no ttl, arrival or
-- 0 if it is not in line}; or a status, the kind of lock that the name is in use for instead.
local reads, line = ARGV[5] == 'read', ARGV[5] == 'read' and readers or writers
local mode = redis.call('HGET', lock, 'mode')
if not mode and redis.call('EXISTS', lock) == 1 then return redis.status_reply('mutex') end
if mode == 'permit' then return redis.status_reply(mode) end
local function read(token)
    redis.call('HSET', lock, 'mode', 'read', owner, 1)
    redis.call('SET', mine, token, 'PX', ttl)
    redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
    return token
end
local writes = mode == 'write' and redis.call('HEXISTS', lock, owner .. ':write') == 1
if writes and reads then -- a downgrade
    read(drawn(KEYS[6]))
    redis.call('HDEL', lock, owner .. ':write')
    redis.call('PEXPIRE', lock, ttl)
    wake_all()
    return redis.call('GET', mine)
elseif writes then
    redis.call('PEXPIRE', lock, ttl)
    return drawn(KEYS[6])
elseif reads and mode == 'read' and redis.call('HEXISTS', lock, owner) == 1 then
    return read(redis.call('GET', mine) or draw(KEYS[6]))
end
bury()
local came = tonumber(redis.call('ZSCORE', line, owner) or 'inf')
local writer, reader = redis.call('ZRANGE', writers, 0, 0, 'WITHSCORES'), redis.call('ZRANGE', readers, 0, 0, 'WITHSCORES')
local behind = writer[2] and tonumber(writer[2]) < came and writer[1]
    or not reads and reader[2] and tonumber(reader[2]) < came and reader[1]
if not behind and (not mode or reads and mode == 'read') then
    local token = draw(KEYS[6])
    leave(owner)
    if reads then return read(token) end
    redis.call('HSET', lock, 'mode', 'write', owner .. ':write', 1)
    redis.call('PEXPIRE', lock, ttl)
    return token
end
