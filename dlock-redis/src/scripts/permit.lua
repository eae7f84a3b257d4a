-- What the scripts of permits share. KEYS: lock, queue of all who hold or wait, by arrival, their heartbeats.
-- ARGV: claim, which is `owner/limit`, ttl in ms, channel, publish command.
-- While anybody is in the queue, the lock is a hash with the one field `mode` = `permit`. Redisson's scripts, and those of a
-- dlock without permits, take that for a lock that others hold. The claims at the head of the queue hold: those with fewer
-- ahead than the smallest limit of all up to there. A place in the queue is drawn as a token, and is the claim's token.
local lock, queue, beats, me, ttl = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function limit_of(who) return tonumber(string.match(who, '/(%d+)$')) or 1 end
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
-- Removes claims, and wakes each claim whose turn comes by that.
local function remove(gone)
    local before = #gone > 0 and holders()
    for _, who in ipairs(gone) do redis.call('ZREM', queue, who) redis.call('ZREM', beats, who) end
    for _, who in ipairs(before and holders() or {}) do
        if not before[who] and who ~= me then redis.call(ARGV[4], ARGV[3] .. ':' .. owner_of(who), '0') end
    end
end
-- Removes the dead. If others have deleted the lock or taken it, those who held must not hold again, and those who wait must
-- draw greater tokens than the others have had: they come again, some because they are woken, the others by themselves.
local function bury(is_ours)
    remove(redis.call('ZRANGEBYSCORE', beats, '-inf', now))
    if is_ours then return end
    remove(holders())
    redis.call('DEL', queue, beats)
end
-- Keeps all three keys as long as the longest claim.
local function keep()
    redis.call('HSET', lock, 'mode', 'permit')
    for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], math.max(redis.call('PTTL', KEYS[i]), ttl)) end
end
