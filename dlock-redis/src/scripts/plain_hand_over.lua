-- Hands a hold of the plain dialect over from one claim to another.
-- KEYS: key.
-- ARGV: value of the old claim, value of the new claim, ms that the hold lasts from now, deadline.
-- Reply: that of hand_over.lua.
local held, lasting, left = redis.pcall('GET', KEYS[1]), tonumber(ARGV[3]), redis.call('PTTL', KEYS[1])
if held == ARGV[2] then
    if left < lasting then redis.call('PEXPIRE', KEYS[1], lasting) end
    return {2, '0'}
elseif held ~= ARGV[1] then
    return {0}
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', lasting)
return {1, '0', left}
