-- What the scripts of permits share. KEYS: lock, queue of all who hold or wait, by arrival, their heartbeats.
-- ARGV: claim, which is `owner/limit`, ttl in ms, channel, publish command.
-- While anybody holds or waits, the lock is a hash whose `mode` is `permit`. Redisson's scripts, and those of a dlock without
-- permits, take that for a lock that others hold. Until a second claim comes, the first is a field of this hash, with its token,
-- and lives as long as the hash. From then on all claims are in the queue, and those at its head hold: those with fewer ahead
-- than the smallest limit of all up to there. A place in the queue is drawn as a token, and is the claim's token.
local lock, queue, beats, me, ttl = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2])
local function limit_of(who) return tonumber(string.match(who, '^.*/(%d+)$')) or 1 end
local function owner_of(who) return string.match(who, '^(.*)/') or who end
-- Those who hold, in order, and as keys. Reads no more of the queue than the first claim's limit.
local function holders()
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    local held, least = {}, first and limit_of(first) or 0
    for i, who in ipairs(first and redis.call('ZRANGE', queue, 0, least - 1) or {}) do
        least = math.min(least, limit_of(who))
        if i > least then break end
        held[i], held[who] = who, true
    end
    return held
end
-- Removes claims, and wakes each claim whose turn comes by that. Answers who held before.
local function remove(gone)
    local before = holders()
    local nobody_waits = redis.call('ZCARD', queue) == #before
    for _, who in ipairs(gone) do redis.call('ZREM', queue, who) redis.call('ZREM', beats, who) end
    for _, who in ipairs(nobody_waits and {} or holders()) do
        if not before[who] and who ~= me then redis.call(ARGV[4], ARGV[3] .. ':' .. owner_of(who), '0') end
    end
    return before
end
