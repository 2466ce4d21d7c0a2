package mr

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/register"
)

// Required is who says that no data of two hosts may go by TCP, or "". wanted is Options.Net.
func Required(wanted string) string {
	switch {
	case env.Requires("verbs"):
		return env.Require.Name + " lists verbs"
	case wanted == "verbs":
		return "Options.Net is verbs"
	}
	return ""
}

// FromEnv opens the backend that the environment asks for, in a job of several hosts or of one; wanted is Options.Net. If there
// is none, b is nil, and absent says why: Options.Net is tcp, UBCOLL_IB=off, or auto and one host, or no device could be used.
// With on, or if verbs are Required, the latter is err. Else log is told, unless the reason is that there is no device. Malformed
// variables are err in any case. keep is [Config.Keep], gpu is [Config.GPU].
func FromEnv(log *slog.Logger, several bool, wanted, gpu string, keep func(register.Memory)) (b *Backend, absent, err error) {
	when, err1 := env.IB.Get()
	config, err2 := ConfigFromEnv()
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	if !several {
		wanted = ""
	}
	switch {
	case wanted == "tcp" && env.Requires("verbs"):
		return nil, nil, fmt.Errorf("Options.Net is tcp, and %s: %w", Required(wanted), hw.ErrNotSupported)
	case wanted == "verbs" && when == "off":
		return nil, nil, fmt.Errorf("Options.Net is verbs, and %s=off: %w", env.IB.Name, hw.ErrNotSupported)
	case wanted == "tcp":
		return nil, fmt.Errorf("Options.Net is tcp: %w", hw.ErrNotSupported), nil
	case when == "off":
		return nil, fmt.Errorf("%s=off: %w", env.IB.Name, hw.ErrNotSupported), nil
	case when == "auto" && !several && !env.Requires("verbs"): // opening devices takes time, and registering pins memory, for nothing
		return nil, fmt.Errorf("%s=auto, and all ranks are on one host: %w", env.IB.Name, hw.ErrNotSupported), nil
	}
	if config.Keep, config.Log = keep, log; config.GDR != "off" {
		config.GPU = gpu
	}
	b, err = Open(config)
	switch {
	case err == nil:
		return b, nil, nil
	case Required(wanted) != "":
		return nil, nil, fmt.Errorf("%s: %w", Required(wanted), err)
	case when == "on":
		return nil, nil, fmt.Errorf("%s=on: %w", env.IB.Name, err)
	case !errors.Is(err, hw.ErrNotSupported):
		log.Warn("ubcoll: the RDMA devices are not used", "error", err)
	}
	return nil, err, nil
}

// ConfigFromEnv returns which devices the environment selects, how they register, and how packets travel between them.
func ConfigFromEnv() (Config, error) {
	devices, err1 := env.IBDevices.Get()
	relaxed, err2 := env.IBRelaxed.Get()
	sel, err := verbs.ParseSelection(devices)
	if err != nil {
		err = fmt.Errorf("%s: %w", env.IBDevices.Name, err)
	}
	path := verbs.DefaultPath()
	var errs [8]error
	var tc, sl, timeout, retries, pairs int
	var gdr string
	path.GIDIndex, errs[0] = env.IBGIDIndex.Get()
	path.PKeyIndex, errs[1] = env.IBPKey.Get()
	tc, errs[2] = env.IBTrafficClass.Get()
	sl, errs[3] = env.IBServiceLevel.Get()
	timeout, errs[4] = env.IBTimeout.Get()
	retries, errs[5] = env.IBRetries.Get()
	pairs, errs[6] = env.IBQueuePairs.Get()
	gdr, errs[7] = env.GDR.Get()
	path.TrafficClass, path.ServiceLevel, path.Timeout, path.Retries = uint8(tc), uint8(sl), uint8(timeout), uint8(retries)
	return Config{Select: sel, Relaxed: relaxed != 0, Path: path, QueuePairs: pairs, GDR: gdr}, errors.Join(append(errs[:], err1, err2, err)...)
}
