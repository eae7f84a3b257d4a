-- Hands a permit over from one claim to another.
-- KEYS: those of permit.lua.
-- ARGV: those of permit.lua, with the ms that the hold lasts from now as the ttl; new claim of the
-- permit, deadline.
-- Reply: that of hand_over.lua.
local to = ARGV[5]
if redis.pcall('HGET', lock, 'mode') ~= 'permit' then return {0} end
local own_token, new_token, left = redis.call('HGET', lock, me), redis.call('HGET', lock, to), redis.call('PTTL', lock)
if new_token then
    if left < ttl then redis.call('PEXPIRE', lock, ttl) end
    return {2, new_token}
elseif own_token then
    redis.call('HSET', lock, to, own_token)
    redis.call('HDEL', lock, me)
    redis.call('PEXPIRE', lock, ttl)
    return {1, own_token, left}
end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = holders()
local function end_of(who)
    local heartbeat = held[who] and tonumber(redis.call('ZSCORE', heartbeats, who))
    return heartbeat and heartbeat >= now and heartbeat
end
local own_end, new_end = end_of(me), end_of(to)
if not own_end and not new_end then return {0} end
local token = redis.call('ZSCORE', queue, new_end and to or me)
if not new_end then
    redis.call('ZREM', queue, me)
    redis.call('ZREM', heartbeats, me)
    redis.call('ZADD', queue, token, to)
end
redis.call('ZADD', heartbeats, string.format('%d', math.max(now + ttl, new_end or 0)), to)
-- The keys last as long as the longest claim, which may have been this one.
local last = redis.call('ZRANGE', heartbeats, -1, -1, 'WITHSCORES')[2]
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], string.format('%d', last - now)) end
if new_end then return {2, token} end
return {1, token, string.format('%d', own_end - now)}
