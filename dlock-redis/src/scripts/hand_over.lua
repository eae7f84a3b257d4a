-- Hands a hold over from one claim to another.
-- KEYS: lock, token, and for a read hold the timeouts of `from` and of `to`, else the lock twice.
-- ARGV: fields of `from` and of `to` as in renew.lua, ms that the hold lasts from now, tag,
-- deadline.
-- Reply: {1, token, ms that were left} if `to` now has the hold of `from`. {2, token} if `to`
-- already had the hold, which then lasts at least for the given time. {0} if neither has the hold.
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
-- The new field is written first, because a hash without fields is deleted with its ttl.
redis.call('HSET', lock, to, redis.call('HGET', lock, from))
redis.call('HDEL', lock, from)
if reads then
    redis.call('SET', new, redis.call('GET', old), 'PX', lasting)
    redis.call('DEL', old)
    keep(lock)
    -- The lock lasts as long as its longest reader, which may have been this one.
    redis.call('PEXPIRE', lock, left > lasting and longest_read(lock, ARGV[4]) or redis.call('PTTL', lock))
else
    redis.call('PEXPIRE', lock, lasting)
    -- A downgrade returns the token, so the token must not end before the hold.
    local ends = redis.call('PTTL', token)
    if ends >= 0 and ends < 2 * lasting then redis.call('PEXPIRE', token, 2 * lasting) end
end
return {1, redis.call('GET', drawn) or '0', left}
