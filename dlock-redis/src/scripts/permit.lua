-- The common part of the scripts of permits.
-- KEYS: lock, queue of all holders and waiters by arrival, their heartbeats.
-- ARGV: claim in the format `owner/limit`, ttl in ms, channel, publish command.
--
-- While there is a holder or a waiter, the lock is a hash whose `mode` is `permit`. To the scripts
-- of Redisson, and of a dlock without permits, this is a lock of another holder. Until a second
-- claim arrives, the first claim is a field of this hash, with its token as the value, and lasts as
-- long as the hash. From then on all claims are in the queue, and the claims at its head hold. A
-- claim holds if fewer claims are ahead of it than the smallest limit among itself and these
-- claims. The position in the queue is drawn as a token, which is also the claim's token.
local lock, queue, heartbeats, me, ttl = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2])
local function limit_of(who) return tonumber(string.match(who, '^.*/(%d+)$')) or 1 end
local function owner_of(who) return string.match(who, '^(.*)/') or who end
-- Returns the holders, as a list in order and also as keys. Reads at most as many entries of the
-- queue as the first claim's limit.
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
-- Removes claims, and wakes each claim that holds as a result. Returns the holders before the
-- removal.
local function remove(removed)
    local before = holders()
    local no_waiters = redis.call('ZCARD', queue) == #before
    for _, who in ipairs(removed) do redis.call('ZREM', queue, who) redis.call('ZREM', heartbeats, who) end
    for _, who in ipairs(no_waiters and {} or holders()) do
        if not before[who] and who ~= me then redis.call(ARGV[4], ARGV[3] .. ':' .. owner_of(who), '0') end
    end
    return before
end
