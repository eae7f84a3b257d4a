-- KEYS: those of rw.lua. ARGV: those of rw.lua, tag. Answer: 1 if the owner held it, else 0. Wakes whom that concerns.
if redis.pcall('HEXISTS', lock, 'mode') ~= 1 then
    if leave(owner) then wake_all() end
    return 0
end
bury()
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
-- Without its timeout it is lost, as for renew.lua; its field goes all the same.
local lives = redis.call('DEL', mine) == 1
local held = redis.call('HDEL', lock, owner) == 1
-- A writer's ttl is its own: only what readers hold is measured by them.
if held and redis.call('HGET', lock, 'mode') == 'read' then
    local longest = longest_read(ARGV[5])
    if redis.call('HLEN', lock) == 1 then
        redis.call('DEL', lock)
        redis.call(ARGV[4], ARGV[3], '0')
    elseif longest then
        redis.call('PEXPIRE', lock, longest)
    end
end
if waited then wake_all() end
return held and lives and 1 or 0
