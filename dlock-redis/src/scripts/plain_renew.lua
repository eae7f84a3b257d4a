-- Renews holds of the plain dialect.
-- KEYS: the key of each hold, twice, because renew.lua has two keys for each hold.
-- ARGV: the value of each hold, then the ttl of each hold in ms.
-- Reply: for each hold 1 if it was renewed, 0 if it was deleted.
local reply, holds = {}, #ARGV / 2
for i = 1, holds do
    local held = redis.pcall('GET', KEYS[2 * i]) == ARGV[i]
    -- Never shortens the hold, because a renewal may be executed late. Always writes, because
    -- replicas confirm only writes.
    local ttl = tonumber(ARGV[holds + i])
    if held then redis.call('PEXPIRE', KEYS[2 * i], math.max(redis.call('PTTL', KEYS[2 * i]), ttl)) end
    reply[i] = held and 1 or 0
end
return reply
