-- KEYS: those of permit.lua. ARGV: those of permit.lua, whose ttl is the ms for which the hold lasts from now, claim that gets the
-- permit, deadline.
-- Answer: as hand_over.lua.
local to = ARGV[5]
if redis.pcall('HGET', lock, 'mode') ~= 'permit' then return {0} end
local alone, alone_to, left = redis.call('HGET', lock, me), redis.call('HGET', lock, to), redis.call('PTTL', lock)
if alone_to then
    if left < ttl then redis.call('PEXPIRE', lock, ttl) end
    return {2, alone_to}
elseif alone then
    redis.call('HSET', lock, to, alone)
    redis.call('HDEL', lock, me)
    redis.call('PEXPIRE', lock, ttl)
    return {1, alone, left}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = holders()
local function ends_of(who)
    local ends = held[who] and tonumber(redis.call('ZSCORE', beats, who))
    return ends and ends >= now and ends
end
local ends, ends_to = ends_of(me), ends_of(to)
if not ends and not ends_to then return {0} end
local token = redis.call('ZSCORE', queue, ends_to and to or me)
if not ends_to then
    redis.call('ZREM', queue, me)
    redis.call('ZREM', beats, me)
    redis.call('ZADD', queue, token, to)
end
redis.call('ZADD', beats, string.format('%d', math.max(now + ttl, ends_to or 0)), to)
-- The keys last as long as the longest claim, which this one may have been.
local last = redis.call('ZRANGE', beats, -1, -1, 'WITHSCORES')[2]
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], string.format('%d', last - now)) end
if ends_to then return {2, token} end
return {1, token, string.format('%d', ends - now)}
