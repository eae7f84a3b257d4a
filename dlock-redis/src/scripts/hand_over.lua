-- KEYS: lock, token, for a read hold the timeout of `from` and that of `to`, else the lock twice.
-- ARGV: field of `from` and of `to` as in renew.lua, ms for which the hold lasts from now, tag, deadline.
-- Answer: {1, token, ms that were left} if `to` has the hold of `from` now; {2, token} if it had it before, which then lasts for as
-- long at least; {0} if the hold is gone.
local lock, token, old, new = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local from, to, lasting = ARGV[1], ARGV[2], tonumber(ARGV[3])
local function keep(key)
    if redis.call('PTTL', key) < lasting then redis.call('PEXPIRE', key, lasting) end
end
local function has(field, timeout)
    return redis.pcall('HEXISTS', lock, field) == 1 and redis.call('EXISTS', timeout) == 1
end
local reads = old ~= lock
local drawn = reads and new or token
if has(to, new) then
    keep(new)
    keep(lock)
    return {2, redis.call('GET', drawn) or '0'}
elseif not has(from, old) then
    return {0}
end
local left = redis.call('PTTL', old)
-- The new field comes first: a hash without fields would lose its ttl.
redis.call('HSET', lock, to, redis.call('HGET', lock, from))
redis.call('HDEL', lock, from)
if reads then
    redis.call('SET', new, redis.call('GET', old), 'PX', lasting)
    redis.call('DEL', old)
    keep(lock)
    -- The lock lasts as long as its longest reader, which this one may have been.
    redis.call('PEXPIRE', lock, left > lasting and longest_read(lock, ARGV[4]) or redis.call('PTTL', lock))
else
    redis.call('PEXPIRE', lock, lasting)
    -- A downgrade is answered with the token, so the token must not end before the hold.
    local ends = redis.call('PTTL', token)
    if ends >= 0 and ends < 2 * lasting then redis.call('PEXPIRE', token, 2 * lasting) end
end
return {1, redis.call('GET', drawn) or '0', left}
