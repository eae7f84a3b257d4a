-- Acquires several mutexes, all or none of them. Not for a cluster, which has them on several nodes.
-- KEYS: lock and token of each mutex.
-- ARGV: number of mutexes, ttl in ms, the owner of each mutex, token_ttl, deadline.
-- Reply: the token of each mutex if the owners hold them all now. Otherwise the index of the first
-- mutex that another owner holds, counted from 0. Or a status: `other` if a lock of another kind
-- uses one of the names, or `partly` if some owners hold their mutexes already, because this call
-- was executed before, and another owner holds one.
local count, holds, held, busy = tonumber(ARGV[1]), {}, 0, nil
for i = 1, count do
    local lock, owner = KEYS[2 * i - 1], ARGV[i + 2]
    if redis.call('EXISTS', lock) == 1 then
        if redis.call('HEXISTS', lock, owner) == 1 then
            holds[i], held = true, held + 1
        elseif redis.call('HEXISTS', lock, 'mode') == 1 then
            return redis.status_reply('other')
        else
            busy = busy or i - 1
        end
    end
end
if busy then return held > 0 and redis.status_reply('partly') or busy end
-- All tokens first, because a draw fails if the token's key is of another type.
local tokens = {}
for i = 1, count do tokens[i] = draw(KEYS[2 * i], holds[i]) end
for i = 1, count do
    local lock = KEYS[2 * i - 1]
    if not holds[i] then redis.call('HSET', lock, ARGV[i + 2], 1) end
    redis.call('PEXPIRE', lock, ARGV[2])
end
return tokens
