. /work/scratch/pl7/env.sh
$P12 /work/scratch/pl7/joinvar.py roe_flux_3d 4096 t
$P11 /work/scratch/pl7/joinvar.py roe_flux_3d 100000 t
$P12 /work/scratch/pl7/joinvar.py roe_flux_3d 100000 t
