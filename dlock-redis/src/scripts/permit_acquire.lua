-- Acquires a permit.
-- KEYS: those of permit.lua, token.
-- ARGV: those of permit.lua, `try` or `wait`, token_ttl, deadline.
-- Reply: that of acquire.lua, except that a claim without a grant gets {ms until its next attempt,
-- 0}.
local mode = redis.call('HGET', lock, 'mode')
local is_free = not mode and redis.call('EXISTS', lock) == 0
if not is_free and mode ~= 'permit' then return redis.status_reply(mode and 'rwlock' or 'mutex') end
local now, limit = remove_expired(not is_free), limit_of(me)
-- As many claims ahead as its own limit exclude the claim, whatever their limits are. No more
-- entries of the queue are read.
local entries, least, place = redis.call('ZRANGE', queue, 0, limit - 1), limit, nil
for i, who in ipairs(entries) do
    if who == me then place = i - 1 break end
    least = math.min(least, limit_of(who))
end
place = place or #entries == limit and redis.call('ZRANK', queue, me)
local ahead = place or redis.call('ZCARD', queue)
if ahead >= least and ARGV[5] == 'try' then
    if place then remove({me}) end
    return {ttl, 0}
end
-- The first write of a new claim. If the token's key is of another type, this fails and no claim is
-- created.
local token = place and redis.call('ZSCORE', queue, me) or draw(KEYS[4])
if not place then redis.call('ZADD', queue, token, me) end
redis.call('ZADD', heartbeats, string.format('%d', now + ttl), me)
if is_free then redis.call('HSET', lock, 'mode', 'permit') end
-- All three keys end together, after the longest claim.
for i = 1, redis.call('PTTL', lock) < ttl and 3 or 0 do redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
if ahead < least then return token end
-- Any of the nearest claims ahead may expire first. Claims further ahead are checked at the claim's
-- next heartbeat.
local left = ttl
for _, who in ipairs(redis.call('ZRANGE', queue, math.max(0, ahead - math.min(limit, 16)), ahead - 1)) do
    left = math.min(left, (redis.call('ZSCORE', heartbeats, who) or now) - now + 1)
end
return {math.ceil(left), 0}
