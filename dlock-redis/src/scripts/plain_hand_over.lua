-- KEYS: key. ARGV: value of the claim that has the lock, value of the claim that gets it, ms for which it lasts from now, deadline.
-- Answer: as hand_over.lua.
local held, lasting, left = redis.pcall('GET', KEYS[1]), tonumber(ARGV[3]), redis.call('PTTL', KEYS[1])
if held == ARGV[2] then
    if left < lasting then redis.call('PEXPIRE', KEYS[1], lasting) end
    return {2, '0'}
elseif held ~= ARGV[1] then
    return {0}
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', lasting)
return {1, '0', left}
