-- Releases a read/write lock, or removes a waiting owner. Wakes the waiters if one may have its
-- turn.
-- KEYS: those of rw.lua.
-- ARGV: those of rw.lua, tag.
-- Reply: 1 if the owner held the lock, else 0.
if redis.pcall('HEXISTS', lock, 'mode') ~= 1 then
    if leave(owner) then wake_all() end
    return 0
end
remove_expired()
local waited = leave(owner)
if redis.call('HDEL', lock, owner .. ':write') == 1 then
    if redis.call('HLEN', lock) == 1 then
        redis.call('DEL', lock)
    else
        redis.call('HSET', lock, 'mode', 'read')
    end
    wake_all()
    return 1
end
-- A read hold without its timeout is lost, as in renew.lua. Its field is still removed.
local is_alive = redis.call('DEL', own_timeout) == 1
local held = redis.call('HDEL', lock, owner) == 1
-- Only a lock in read mode lasts as long as its last reader. In write mode it has the ttl of the
-- writer.
if held and redis.call('HGET', lock, 'mode') == 'read' then
    local longest = longest_read(lock, ARGV[5])
    if redis.call('HLEN', lock) == 1 then
        redis.call('DEL', lock)
        redis.call(ARGV[4], ARGV[3], '0')
    elseif longest then
        redis.call('PEXPIRE', lock, longest)
    end
end
if waited then wake_all() end
return held and is_alive and 1 or 0
