-- time is the server's clock: the seconds since 1970, and the microseconds of the current second.
local time = redis.call('TIME')
