package coll

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/team"
)

// onDevice reports whether w may be a device operation. For host memory and a plain view it costs three comparisons.
func onDevice(v *inside.View, w *team.Work) bool {
	return !w.Src.Dev.IsHost() || !w.Dst.Dev.IsHost() || v.Stream != nil && !v.Stream.Device().IsHost()
}

// placeOnDevice turns w, for which onDevice is true, into a device operation, and reports whether it did. If not, w has
// an error, and the peers learn it on the host.
func placeOnDevice(v *inside.View, w *team.Work) bool {
	mine, err := v.Comm.GPU()
	onto, disagree := side(v, w)
	switch {
	case err != nil:
		err = fmt.Errorf("memory or a stream on %v: %w", onto, err)
		disagree = nil
	case disagree != nil:
		err = disagree
	case onto != mine:
		err = fmt.Errorf("memory or a stream on %v, and this rank's device is %v: %w", onto, mine, fault.ErrArgument)
	}
	if w.Err == nil {
		w.Err = err
	}
	if _, none := v.Comm.GPU(); none != nil {
		return false
	}
	if v.SpansHosts() {
		chooseStaged(v.Comm.Team(), w)
		return w.Err == nil
	}
	d, t, asked := gpu.DeviceOf(v.Comm), &v.Comm.Team().Tuning().GPU, onHost(v.Comm.Options().Algorithm)
	if d.Multicasts() {
		var ok bool
		if w.Kernel, ok = chooseMulticast(t, asked, w, v.Comm.Size()); ok {
			return true
		}
	}
	w.Kernel = chooseKernel(t, asked, w, v.Comm.Size(), d.Layout.Data())
	return true
}

// side is the device of w's buffers and of the view's stream. An empty buffer does not count if something else is on a
// device.
func side(v *inside.View, w *team.Work) (hw.Device, error) {
	src, dst := w.Src.Dev, w.Dst.Dev
	switch {
	case w.Src.Bytes() > 0 && w.Dst.Bytes() > 0 && src != dst:
		return either(src, dst), fmt.Errorf("the source is on %v, the destination on %v: %w", src, dst, fault.ErrArgument)
	case w.Src.Bytes() == 0 && (w.Dst.Bytes() > 0 || src.IsHost()):
		src = dst
	}
	if v.Stream == nil {
		return src, nil
	}
	s := v.Stream.Device()
	if s != src && w.Src.Bytes()+w.Dst.Bytes() > 0 {
		return either(s, src), fmt.Errorf("the memory is on %v, the stream on %v: %w", src, s, fault.ErrArgument)
	}
	return s, nil
}

// either is the first device that is not the host.
func either(a, b hw.Device) hw.Device {
	if a.IsHost() {
		return b
	}
	return a
}
