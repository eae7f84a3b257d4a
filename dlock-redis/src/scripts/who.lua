-- Writes a label, or extends its ttl. Never shortens the ttl. The label is in a list, because
-- neither dialect uses a list for a lock. The second element of the list is the client that has
-- created it. It is removed when another client uses the label too.
-- KEYS: label.
-- ARGV: text of the label, empty if the caller does not know it; id of the client; ttl in ms.
-- Reply: that of PEXPIRE.
if ARGV[1] ~= '' and redis.call('LINDEX', KEYS[1], 0) ~= ARGV[1] then
    redis.call('DEL', KEYS[1])
    redis.call('RPUSH', KEYS[1], ARGV[1], ARGV[2])
elseif redis.call('LINDEX', KEYS[1], 1) ~= ARGV[2] then
    redis.call('LTRIM', KEYS[1], 0, 0)
end
return redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[3]))
