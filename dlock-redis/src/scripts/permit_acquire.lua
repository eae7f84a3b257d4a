-- KEYS: those of permit.lua, token. ARGV: those of permit.lua, `try` or `wait`, token_ttl.
-- Answer: as acquire.lua; for a claim that is not granted {ms until it should ask again, 0}.
local mode = redis.call('HGET', lock, 'mode')
local is_free = not mode and redis.call('EXISTS', lock) == 0
if not is_free and mode ~= 'permit' then return redis.status_reply(mode and 'rwlock' or 'mutex') end
bury(not is_free)
local place = redis.call('ZRANK', queue, me)
local ahead, least = place or redis.call('ZCARD', queue), limit_of(me)
-- So many ahead keep it out, whatever their limits are: no more of the queue is read.
if ahead > 0 and ahead < least then
    for _, who in ipairs(redis.call('ZRANGE', queue, 0, ahead - 1)) do least = math.min(least, limit_of(who)) end
end
if ahead >= least and ARGV[5] == 'try' then
    if place then remove({me}) end
    return {ttl, 0}
end
-- The first write of a new claim: if the token's key is of another type, this fails, and the claim is not there.
if not place then redis.call('ZADD', queue, draw(KEYS[4]), me) end
redis.call('ZADD', beats, now + ttl, me)
keep()
if ahead < least then return redis.call('ZSCORE', queue, me) end
-- Any of the nearest that keep it out may die first. All others are seen to at the claim's next heartbeat.
local left = ttl
for _, who in ipairs(redis.call('ZRANGE', queue, math.max(0, ahead - math.min(least, 16)), ahead - 1)) do
    left = math.min(left, (redis.call('ZSCORE', beats, who) or now) - now)
end
return {math.max(1, math.ceil(left)), 0}
