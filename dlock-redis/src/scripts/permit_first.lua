-- The beginning of permit_acquire.lua. Acquires a permit of a free name at once. Continues if there
-- are holders or waiters.
if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) == 0 then
    -- If the token's key is of another type, this fails and no claim is created.
    local token = draw(KEYS[4])
    redis.call('HSET', KEYS[1], 'mode', 'permit', ARGV[1], token)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return token
end
