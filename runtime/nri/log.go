package nri

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
)

// stubLog writes the stub's messages to the agent's log, which is JSON.
type stubLog struct{ log logr.Logger }

// Debugf does nothing: the stub logs a line for each call.
func (stubLog) Debugf(context.Context, string, ...any) {}

// Infof logs at V(1).
func (l stubLog) Infof(_ context.Context, format string, args ...any) {
	l.log.V(1).Info("NRI stub", "message", fmt.Sprintf(format, args...))
}

// Warnf logs a warning of the stub.
func (l stubLog) Warnf(_ context.Context, format string, args ...any) {
	l.log.Info("NRI stub warned", "message", fmt.Sprintf(format, args...))
}

// Errorf logs an error of the stub.
func (l stubLog) Errorf(_ context.Context, format string, args ...any) {
	l.log.Error(fmt.Errorf(format, args...), "NRI stub failed")
}
