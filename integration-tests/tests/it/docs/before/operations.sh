# The addresses of the first cluster and of the second.
FIRST=${DUETIME_URLS%%,*}
FIRST=${FIRST#*//}
SECOND=${DUETIME_URLS##*//}
