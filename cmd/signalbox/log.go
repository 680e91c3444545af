package main

import "go.uber.org/zap/zapcore"

// zapLevel maps a verbosity, as logr counts it, to zap's levels, which count down.
func zapLevel(verbosity int) zapcore.Level { return zapcore.Level(-verbosity) }
